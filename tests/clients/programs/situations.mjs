// What the clients in JavaScript share: the plan they are given, the answer to any question, and how they report.
// A client is run as `node CLIENT.mjs PLAN`, the plan being JSON: {target, era, situations}, where the target is
// {url} or {command, args, cwd, env} and a situation {name, tool, arguments}. It prints one JSON line for each:
// {situation, saw, text}.

export const plan = JSON.parse(process.argv[2]);

const ANSWERS = { boolean: true, string: 'Ada' };

/** Yes to everything, under the name of Ada. */
export function answer({ requestedSchema }) {
  const fields = Object.entries(requestedSchema.properties);
  return { action: 'accept', content: Object.fromEntries(fields.map(([name, { type }]) => [name, ANSWERS[type]])) };
}

/** All situations at once, as hosts call tools; `live` gets one and returns what the client saw: [saw, text]. */
export async function report(live) {
  await Promise.all(plan.situations.map(async (situation) => {
    const [saw, text] = await live(situation).catch((error) => ['error', `${error?.message ?? error}`]);
    console.log(JSON.stringify({ situation: situation.name, saw, text }));
  }));
}

/** A result of a tool, as [saw, text]. */
export function told(result) {
  return [result.isError ? 'isError' : 'result', result.content.map((block) => block.text).join(' ')];
}

/** For clients that know no tasks: whatever a call is answered with, gone on with by the companion tools. */
export async function finished(callTool, { name, tool, arguments: given }) {
  let result = await callTool(tool, given);
  if (!result.structuredContent?.taskId) return told(result);
  for (;;) {
    const { taskId, status, questions } = result.structuredContent;
    if (name === 'cancel' && status === 'working') await callTool('task_cancel', { taskId });
    if (status === 'input_required') {
      const [key, { schema }] = Object.entries(questions)[0];
      result = await callTool('task_answer', { taskId, key, content: answer({ requestedSchema: schema }).content });
    } else if (status === 'working') {
      result = await callTool('task_wait', { taskId });
    } else {
      const [saw, text] = told(result);
      return [`handle, ${status === 'completed' ? saw : status}`, text];
    }
  }
}

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
