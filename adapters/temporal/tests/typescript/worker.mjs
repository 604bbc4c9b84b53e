// A worker that polls until it is killed, or whoever started it is gone: node worker.mjs ADDRESS TASK_QUEUE BUNDLE
// Prints "polling" once the server has heard of it.
import { setTimeout as sleep } from 'node:timers/promises';
import { NativeConnection, Worker } from '@temporalio/worker';
import * as activities from './activities.mjs';

const [address, taskQueue, codePath] = process.argv.slice(2);
process.stdin.on('end', () => process.exit(1)).resume(); // our parent holds the other end

async function polled(connection) {
  const queue = { namespace: 'default', taskQueue: { name: taskQueue }, taskQueueType: 'TASK_QUEUE_TYPE_WORKFLOW' };
  const { pollers } = await connection.workflowService.describeTaskQueue(queue);
  return pollers.length > 0;
}

const connection = await NativeConnection.connect({ address });
const worker = await Worker.create({ connection, taskQueue, activities, workflowBundle: { codePath } });
const ended = worker.run();
while (!(await polled(connection))) await sleep(20);
console.log('polling');
await ended;
