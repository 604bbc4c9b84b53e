// The AI SDK, `@ai-sdk/mcp`: it knows no tasks, but Events by webhook. It calls a tool that takes longer than the server
// waits, subscribes to the end of that task, and receives it at an endpoint of its own. `node ai_sdk_events.mjs PLAN`
// prints one JSON object: what it saw, and each request that its endpoint got, for others to verify.
import { createServer } from 'node:http';
import { createMCPClient, experimental_createMCPEventWebhook as createMCPEventWebhook } from '@ai-sdk/mcp';

const { url, era, tool, arguments: given } = JSON.parse(process.argv[2]);

const subscriptions = new Map();
const store = {
  get: async (key) => subscriptions.get(key),
  getById: async (id) => [...subscriptions.values()].find((each) => each.id === id),
  set: async (each) => void subscriptions.set(each.key, each),
  update: async (key, patch) => void Object.assign(subscriptions.get(key), patch),
  delete: async (key) => void subscriptions.delete(key),
};

const events = [];
let told;
const first = new Promise((resolve) => { told = resolve; });
const handle = createMCPEventWebhook({
  store,
  onEvent: async ({ event }) => {
    events.push(event);
    told();
  },
});

const deliveries = [];
const endpoint = createServer(async (incoming, outgoing) => {
  const chunks = [];
  for await (const chunk of incoming) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  const address = new URL(incoming.url, `http://${incoming.headers.host}`);
  const reply = await handle(new Request(address, { method: incoming.method, headers: incoming.headers, body }));
  deliveries.push({ headers: incoming.headers, body: body.toString('base64'), answered: reply.status });
  outgoing.writeHead(reply.status, Object.fromEntries(reply.headers));
  outgoing.end(Buffer.from(await reply.arrayBuffer()));
});
await new Promise((resolve) => endpoint.listen(0, '127.0.0.1', resolve));

const client = await createMCPClient({
  transport: { type: 'http', url },
  protocolVersionDiscovery: era === '2026-07-28',
  experimental_events: { store },
});
const tools = await client.tools();
const handed = await tools[tool].execute(given, { toolCallId: '1', messages: [] });
const { taskId } = handed.structuredContent;
const listed = await client.experimental_events.list();
const subscribed = await client.experimental_events.subscribe({
  name: 'task.ended',
  arguments: { taskId },
  delivery: { mode: 'webhook', url: `http://127.0.0.1:${endpoint.address().port}/hook`, allowInsecureLocalhost: true },
});
const [{ delivery }] = subscriptions.values();
await first;
const refreshed = await client.experimental_events.refresh({ id: subscribed.id });
await client.experimental_events.unsubscribe({ id: subscribed.id });
await client.close();
endpoint.close();
console.log(JSON.stringify({
  version: client.initializeResult.protocolVersion,
  listed: listed.events.map((each) => each.name),
  taskId,
  subscribed,
  refreshed,
  left: subscriptions.size,
  secret: delivery.secret,
  events,
  deliveries,
}));
