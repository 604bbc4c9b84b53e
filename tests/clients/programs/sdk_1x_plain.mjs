// The TypeScript SDK of 2025-11-25, `@modelcontextprotocol/sdk`, as nearly all hosts use it: without tasks.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { answer, finished, plan, report } from './situations.mjs';

const { url, ...process } = plan.target;

async function connected(capabilities) {
  const client = new Client({ name: 'plain', version: '0' }, { capabilities });
  if (capabilities.elicitation) client.setRequestHandler(ElicitRequestSchema, async ({ params }) => answer(params));
  await client.connect(url ? new StreamableHTTPClientTransport(new URL(url)) : new StdioClientTransport(process));
  await client.listTools();
  return client;
}

const asked = await connected({ elicitation: { form: {} } });
const unasked = await connected({});
await report((situation) => {
  const client = situation.name === 'unasked' ? unasked : asked;
  return finished((name, given) => client.callTool({ name, arguments: given }), situation);
});
await asked.close();
await unasked.close();
