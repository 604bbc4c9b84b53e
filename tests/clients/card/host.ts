// The smallest host for MCP Apps: the official client and AppBridge, one call of a tool, one card.
//
// ?tool=NAME&args=JSON  without a tool: a list of those that have a card
// &era=modern           2026-07-28; else 2025-11-25
// &theme=dark
// &reply=empty|never    the card gets the call's result without its content, as from a chat that is opened again; or no result at all
// &tasks=1              the host speaks tasks, too: it gets a task for the call, and the card gets the result when that has ended
// &refuse=1             the host refuses the calls of the card, until `host.refuse = false`
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { AppBridge, PostMessageTransport, getToolUiResourceUri, isToolVisibilityModelOnly } from "@modelcontextprotocol/ext-apps/app-bridge";
import { createApplicationInputHandler, createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";

const UI = { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } };
const TASKS = { "io.modelcontextprotocol/tasks": {} };
const INFO = { name: "card-host", version: "0" };
const EXAMPLES: Record<string, string> = { order_id: "A-1002", reason: "urgent" }; // of the orders: it has a question
const asked = new URLSearchParams(location.search);
const theme = asked.get("theme") === "dark" ? "dark" : "light";
const chat = document.querySelector("#chat")!;
document.documentElement.style.colorScheme = theme;

// what a test may look at and change
const host = { revision: "", calls: [] as string[], links: [] as string[], told: [] as string[], refuse: asked.has("refuse"), isUp: false, result: undefined as unknown, show, unload, teardown, dress };
Object.assign(window, { host });

const capabilities = { extensions: asked.has("tasks") ? { ...UI, ...TASKS } : UI };
const client = new Client(INFO, { capabilities: capabilities as never, versionNegotiation: { mode: asked.get("era") === "modern" ? "auto" : "legacy" } });
const transport = new StreamableHTTPClientTransport(new URL("/mcp", location.href));
await client.connect(transport);
host.revision = client.getNegotiatedProtocolVersion() ?? "";
const { tools } = await client.listTools();
const tool = tools.find((each) => each.name === asked.get("tool"));
let bridge: AppBridge | undefined;
let cardAnswered = () => {};
const answered = new Promise<void>((yes) => (cardAnswered = yes));
let last: Promise<unknown> = Promise.resolve(); // call of the card
tool ? await start() : list();

/** Calls the tool, as a model would, and shows its card at once. */
async function start() {
  const args = JSON.parse(asked.get("args") || "{}");
  chat.append(Object.assign(document.createElement("p"), { className: "you", textContent: `${tool!.title ?? tool!.name} ${JSON.stringify(args)}` }));
  const result = (asked.has("tasks") ? callAsTask(args) : client.callTool({ name: tool!.name, arguments: args })).then((found) => (host.result = found));
  const reply = asked.get("reply");
  await show(args, reply === "never" ? undefined : reply === "empty" ? result.then(() => ({ content: [] })) : result);
}

/** Calls the tool as a task, and returns its result when it has ended. The card answers first; a later answer counts for nothing. */
async function callAsTask(args: object) {
  const refuse = () => Promise.reject(new Error("not offered"));
  const session = createTaskSessionFromClient(client, {
    endpointId: "card-host",
    ...(host.revision === "2025-11-25" ? {} : { rawDispatch, v2RequestFraming: { protocolVersion: host.revision, clientInfo: INFO, clientCapabilities: capabilities } }),
    onInputRequest: createApplicationInputHandler({ elicitation: () => answered.then(() => ({ action: "cancel" })), sampling: refuse, roots: refuse }),
  } as never);
  const execution = await session.callTool(tool!.name, args as never, { task: { preference: "prefer" } });
  if (execution.kind !== "task") throw new Error(`no task, but ${execution.kind}`);
  return resultFromTaskOutcome((await execution.settle()).outcome);
}

/** Sends a request of tasks of 2026-07-28 past the client, which knows no such results. */
async function rawDispatch(request: object) {
  const id = `raw-${crypto.randomUUID()}`;
  const deliver = transport.onmessage!;
  const reply = new Promise<{ error?: object; result?: object }>((yes) => {
    transport.onmessage = (message, extra) => ("id" in message && message.id === id && !("method" in message) ? yes(message as never) : deliver(message, extra));
  });
  await transport.send({ jsonrpc: "2.0", id, ...request } as never);
  const { error, result } = await reply;
  return error ? { kind: "error", error } : { kind: "result", result };
}

/** A new frame with the page of the tool, which is told these arguments and this result. */
async function show(args: object, result?: unknown) {
  const { contents } = await client.readResource({ uri: getToolUiResourceUri(tool!)! });
  const [page] = contents as { text: string; _meta?: { ui?: { csp?: object } } }[];
  const frame = Object.assign(document.createElement("iframe"), { title: "run card" });
  frame.setAttribute("sandbox", "allow-scripts allow-same-origin");
  const ready = new Promise<void>((yes) => addEventListener("message", ({ source, data }) => source === frame.contentWindow && data?.method === "ui/notifications/sandbox-proxy-ready" && yes()));
  const csp = page._meta?.ui?.csp;
  frame.src = `http://127.0.0.1:${location.port}/sandbox.html?csp=${encodeURIComponent(JSON.stringify(csp ?? {}))}`; // not localhost: another origin
  chat.append(frame);
  await ready;
  const hostContext = { theme, displayMode: "inline", availableDisplayModes: ["inline"], containerDimensions: { maxHeight: 2000 }, platform: "web", locale: "en-GB", toolInfo: { tool } };
  bridge = new AppBridge(null, INFO, { openLinks: {}, serverTools: {}, updateModelContext: { text: {} } }, { hostContext: hostContext as never });
  bridge.oncalltool = async ({ name, arguments: given }) => {
    host.calls.push(name);
    const wanted = tools.find((each) => each.name === name);
    if (host.refuse) throw new Error("this host lets no card call tools");
    if (!wanted || isToolVisibilityModelOnly(wanted)) throw new Error(`${name} is not for cards`); // what a host MUST check
    const result = client.callTool({ name, arguments: given });
    last = result.catch(() => {});
    const reply = await result;
    if (name === "task_answer") cardAnswered();
    return reply as never;
  };
  bridge.onopenlink = async ({ url }) => (host.links.push(url), {});
  bridge.onupdatemodelcontext = async (params) => (host.told.push(JSON.stringify(params)), {});
  bridge.onsizechange = async ({ height }) => { if (height) frame.style.height = `${height + 2}px`; };
  bridge.oninitialized = async () => {
    const mine = bridge!; // its frame may be gone when the result comes
    host.isUp = true;
    await mine.sendToolInput({ arguments: args as never });
    if (result) await Promise.resolve(result).then((found) => mine === bridge && mine.sendToolResult(found as never), ({ message }) => mine === bridge && mine.sendToolCancelled({ reason: message }));
  };
  await bridge.connect(new PostMessageTransport(frame.contentWindow!, frame.contentWindow!));
  await bridge.sendSandboxResourceReady({ html: page.text, csp });
}

/** Takes the frame away, as hosts do with what is scrolled out of sight. */
async function unload() {
  await teardown();
  const gone = bridge!;
  bridge = undefined;
  await gone.close();
  document.querySelector("iframe")!.remove();
  host.isUp = false;
}

async function teardown() {
  await bridge!.teardownResource({});
  await last;
  await new Promise((yes) => setTimeout(yes)); // its reply is on its way
}

/** Tells the card of another theme, for example. */
function dress(changes: object) {
  bridge!.setHostContext({ theme, toolInfo: { tool }, ...changes } as never);
}

function list() {
  for (const each of tools.filter(getToolUiResourceUri)) {
    const names = Object.keys(each.inputSchema.properties ?? {});
    const given = Object.fromEntries(names.filter((name) => name in EXAMPLES || each.inputSchema.required?.includes(name)).map((name) => [name, EXAMPLES[name] ?? "A-17"]));
    const form = document.createElement("form");
    const label = Object.assign(document.createElement("label"), { textContent: each.title ?? each.name });
    label.append(Object.assign(document.createElement("textarea"), { name: "args", value: JSON.stringify(given) }));
    form.append(label, Object.assign(document.createElement("input"), { type: "hidden", name: "tool", value: each.name }), Object.assign(document.createElement("button"), { textContent: "Call" }));
    chat.append(form);
  }
}
