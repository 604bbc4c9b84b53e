// The TypeScript client of 2026-07-28 by itself, `@modelcontextprotocol/client`: it knows no tasks.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { answer, finished, plan, report } from './situations.mjs';

const { url, ...process } = plan.target;

async function connected(capabilities) {
  const client = new Client({ name: 'plain', version: '0' }, { capabilities, versionNegotiation: { mode: { pin: plan.era } } });
  if (capabilities.elicitation) client.setRequestHandler('elicitation/create', async ({ params }) => answer(params));
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
