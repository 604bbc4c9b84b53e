// The official client of tasks, `@modelcontextprotocol/ext-tasks` on `@modelcontextprotocol/client`, in both eras.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { createApplicationInputHandler, createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client';
import { answer, plan, report, told } from './situations.mjs';

const modern = plan.era === '2026-07-28';
const clientInfo = { name: 'ext-tasks', version: '0' };
const clientCapabilities = { elicitation: { form: {} } };
const client = new Client(clientInfo, {
  capabilities: { ...clientCapabilities, extensions: { 'io.modelcontextprotocol/tasks': {} } },
  versionNegotiation: { mode: modern ? { pin: plan.era } : 'legacy' },
});
const { url, ...process } = plan.target;
const transport = url ? new StreamableHTTPClientTransport(new URL(url)) : new StdioClientTransport(process);
await client.connect(transport);

// In 2026-07-28 the package wants to send its requests past the client, which knows no such results.
const waiting = new Map();
const deliver = transport.onmessage;
transport.onmessage = (message, extra) => {
  if (!waiting.has(message.id) || message.method) return deliver(message, extra);
  waiting.get(message.id)(message);
  waiting.delete(message.id);
};
let sent = 0;
const rawDispatch = async (request) => {
  const id = `raw-${sent++}`;
  const reply = new Promise((resolve) => waiting.set(id, resolve));
  await transport.send({ jsonrpc: '2.0', id, ...request });
  const { error, result } = await reply;
  return error ? { kind: 'error', error } : { kind: 'result', result };
};

const session = createTaskSessionFromClient(client, {
  endpointId: 'tests',
  ...(modern ? { rawDispatch, v2RequestFraming: { protocolVersion: plan.era, clientInfo, clientCapabilities } } : {}),
  onInputRequest: createApplicationInputHandler({
    elicitation: async ({ params }) => answer(params),
    sampling: async () => { throw new Error('not offered'); },
    roots: async () => ({ roots: [] }),
  }),
});

await report(async ({ name, tool, arguments: given }) => {
  const execution = await session.callTool(tool, given, { task: { preference: 'prefer' } });
  if (execution.kind !== 'task') throw new Error(`no task, but ${execution.kind}`);
  if (name === 'cancel') await execution.cancel();
  const { outcome } = await execution.settle();
  if (outcome.status === 'completed') return told(outcome.result);
  return [outcome.status, outcome.error?.message ?? ''];
});
await session.close();
await client.close();
