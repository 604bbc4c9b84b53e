// MCP's own Inspector, from the terminal: `mcpdo` connects once and runs a command at a time on that connection.
// The plan names its program, `mcpdo`, and `tasks`, with which our operator lists the tasks that have not ended.
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { answer, pause, plan, report, told } from './situations.mjs';

const run = promisify(execFile);
const home = await mkdtemp(join(tmpdir(), 'mcpdo-'));
const env = { ...process.env, HOME: home, MCP_INSPECTOR_SECRET_STORE: 'memory' };
const timeout = 60_000; // for each command: whatever happens, the daemon of mcpdo has to be stopped in the end

async function mcpdo(...words) {
  const argv = [plan.mcpdo, '--format', 'json', ...words];
  const done = await run(process.execPath, argv, { env, timeout }).catch((error) => error);
  if (done.stdout) return JSON.parse(done.stdout);
  const said = done.stderr.split('\n').find((line) => line.startsWith('{"error"')) ?? done.stderr;
  throw new Error(said.startsWith('{') ? JSON.parse(said).error.message : `${done.message} ${said}`);
}

function connect(name) {
  const { url, command, args, cwd, env: variables } = plan.target;
  const era = plan.era === '2026-07-28' ? 'modern' : 'legacy';
  const more = Object.entries(variables ?? {}).flatMap(([key, value]) => ['-e', `${key}=${value}`]);
  const where = url ? ['http', '--server-url', url, `@${name}`]
    : ['stdio', '--cwd', cwd, ...more, `@${name}`, '--', command, ...args];
  return mcpdo('connect', '--era', era, '--transport', ...where);
}

const on = (name, ...words) => mcpdo('--connection', name, ...words);
const call = ({ tool, arguments: given }) =>
  on('one', 'tools/call', '--task', '--tool-name', tool, '--tool-args-json', JSON.stringify(given));

async function toTheEnd(situation) {
  let said = await call(situation);
  while (said.elicitationPending) {
    const { elicitationId, requestedSchema } = said.elicitationPending;
    const content = Object.entries(answer({ requestedSchema }).content);
    const fields = content.map(([name, value]) => `${name}:=${JSON.stringify(value)}`);
    said = await mcpdo('elicitation/respond', elicitationId, ...fields);
  }
  return told(said);
}

/** A connection is busy until its call has ended, so another one cancels. */
async function cancelled(situation) {
  const called = call(situation).then(() => 'it was not cancelled', (error) => error.message);
  const taskId = await running(situation.tool);
  await on('two', 'tasks/cancel', '--', taskId);
  const text = await called;
  const { task } = await on('two', 'tasks/get', '--', taskId);
  return [task.status, text];
}

async function running(tool) {
  const [program, ...words] = plan.tasks;
  for (let tries = 0; tries < 30; tries++) {
    const unended = JSON.parse((await run(program, words, { timeout })).stdout);
    const found = unended.find((task) => task.tool === tool);
    if (found) return found.id;
    await pause(100);
  }
  throw new Error(`no task of ${tool}`);
}

try {
  await connect('one');
  await connect('two');
  let before = Promise.resolve();
  await report((situation) => {
    const live = situation.name === 'cancel' ? cancelled : toTheEnd;
    before = before.then(() => live(situation), () => live(situation));
    return before;
  });
} finally {
  await mcpdo('daemon', 'stop');
  await rm(home, { recursive: true, force: true });
}
