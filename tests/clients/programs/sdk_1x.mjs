// The TypeScript SDK of 2025-11-25, `@modelcontextprotocol/sdk`, with the tasks it calls experimental.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { answer, pause, plan, report, told } from './situations.mjs';

const capabilities = { elicitation: { form: {} }, tasks: { requests: {} } };
const client = new Client({ name: 'sdk-1x', version: '0' }, { capabilities });
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => answer(params));
const { url, ...process } = plan.target;
await client.connect(url ? new StreamableHTTPClientTransport(new URL(url)) : new StdioClientTransport(process));
const tasks = client.experimental.tasks;

const call = ({ tool, arguments: given }) =>
  tasks.callToolStream({ name: tool, arguments: given }, CallToolResultSchema, { task: { ttl: 60_000 } });

async function toTheEnd(situation) {
  let task;
  for await (const message of call(situation)) {
    task = message.task ?? task;
    if (message.type === 'result') return told(message.result);
    if (message.type === 'error') return failed(task, message.error);
  }
}

/** The SDK itself says only "Task X failed": the text is in the task's message, and in the result, if one asks. */
async function failed(task, error) {
  if (!task) return ['error', error.message];
  const asked = await tasks.getTaskResult(task.taskId, CallToolResultSchema)
    .then(told, (problem) => ['error', problem.message]);
  return [`${task.status}, ${asked[0]}`, `${task.statusMessage} / ${asked[1]}`];
}

async function created(situation) {
  for await (const message of call(situation)) return message.task;
}

async function cancelled(situation) {
  const task = await created(situation);
  const reply = await tasks.cancelTask(task.taskId);
  const again = await tasks.cancelTask(task.taskId).then(() => 'accepted', ({ code }) => code);
  const later = await tasks.getTask(task.taskId);
  return [later.status, `reply ${reply.status}, again ${again}`];
}

/** Never asks for the result before the end: the question has to come by itself. */
async function polled(situation) {
  let task = await created(situation);
  while (!['completed', 'failed', 'cancelled'].includes(task.status)) {
    await pause(task.pollInterval ?? 500);
    task = await tasks.getTask(task.taskId);
  }
  return told(await tasks.getTaskResult(task.taskId, CallToolResultSchema));
}

const WAYS = { cancel: cancelled, polls: polled };
await client.listTools();
await report((situation) => (WAYS[situation.name] ?? toTheEnd)(situation));
await client.close();
