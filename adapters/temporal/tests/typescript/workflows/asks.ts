// Workflows that use mcpwf.ts, copied beside them as an author does it.
import {
  ApplicationFailure,
  CancellationScope,
  condition,
  continueAsNew,
  defineSignal,
  isCancellation,
  setHandler,
  sleep,
  workflowInfo,
} from '@temporalio/workflow';
import { elicit, type Form, progress } from '../mcpwf';

export const SIZE: Form = {
  type: 'object',
  properties: { size: { type: 'string', enum: ['S', 'M'] }, count: { type: 'integer', minimum: 1 } },
  required: ['size'],
};
const go = defineSignal('go');

export async function asks(who: string): Promise<object> {
  progress(`asking ${who}`, 1, 2);
  const answer = await elicit(`Which size, ${who}?`, SIZE);
  progress('asked', 2, 2);
  return answer;
}

export async function asksTwice(): Promise<unknown[]> {
  const note: Form = { type: 'object', properties: { note: { type: 'string' } } };
  const answers = await Promise.all([elicit('first', note), elicit('second', SIZE)]);
  return answers.map(({ content }) => content);
}

/** Whatever form it is given. */
export async function asksThis(form: Form): Promise<object> {
  return await elicit('?', form);
}

/** Takes its question back and goes on. */
export async function changesItsMind(): Promise<string> {
  const scope = new CancellationScope();
  const question = scope.run(() => elicit('never mind', SIZE));
  await sleep('500 milliseconds');
  scope.cancel();
  const taken = await question.catch((error) => isCancellation(error));
  await condition(() => false);
  return `unreachable ${taken}`;
}

/** Leaves a question in the memo; the next run waits for `go`. */
export async function asksThenContinues(again = true): Promise<string> {
  let going = false;
  setHandler(go, () => void (going = true));
  if (again) elicit('left behind', SIZE).catch(() => undefined);
  await condition(() => going);
  if (again) await continueAsNew<typeof asksThenContinues>(false);
  return 'the end';
}

/** Fails its first attempt with a question open; the second waits for `go`. */
export async function asksThenFails(): Promise<string> {
  let going = false;
  setHandler(go, () => void (going = true));
  if (workflowInfo().attempt === 1) elicit('left behind', SIZE).catch(() => undefined);
  await condition(() => going);
  if (workflowInfo().attempt === 1) throw ApplicationFailure.create({ message: 'first attempt' });
  return 'second attempt';
}

/** A JSON-RPC error, as the contract has it. */
export async function refuses(): Promise<void> {
  throw ApplicationFailure.create({
    type: 'McpError',
    message: 'no such order',
    details: [-32602, { order: 'o-1' }],
    nonRetryable: true,
  });
}
