// The official TypeScript client of the tasks extension: one call to its end, questions answered; prints the outcome.
// node ext_tasks.mjs URL TOOL ARGUMENTS ANSWER
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createApplicationInputHandler, createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client';

const [url, tool, args, answer] = process.argv.slice(2);
const protocolVersion = '2026-07-28';
const clientInfo = { name: 'ext-tasks', version: '0' };
const clientCapabilities = { elicitation: { form: {} } };
const client = new Client(clientInfo, {
  capabilities: { ...clientCapabilities, extensions: { 'io.modelcontextprotocol/tasks': {} } },
  versionNegotiation: { mode: { pin: protocolVersion } },
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));

let id = 1000;
const rawDispatch = async (request) => {
  const name = request.params?.name ?? request.params?.taskId ?? '';
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': protocolVersion,
      'mcp-method': request.method,
      'mcp-name': name,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: id++, ...request }),
  });
  const body = await response.json();
  return body.error ? { kind: 'error', error: body.error } : { kind: 'result', result: body.result };
};

const session = createTaskSessionFromClient(client, {
  endpointId: 'tests',
  rawDispatch,
  v2RequestFraming: { protocolVersion, clientInfo, clientCapabilities },
  onInputRequest: createApplicationInputHandler({
    elicitation: async () => JSON.parse(answer),
    sampling: async () => { throw new Error('not offered'); },
    roots: async () => ({ roots: [] }),
  }),
});
const execution = await session.callTool(tool, JSON.parse(args), { task: { preference: 'prefer' } });
const { outcome } = await execution.settle();
console.log(JSON.stringify({ kind: execution.kind, result: outcome.result, error: outcome.error }));
await session.close();
await client.close();
