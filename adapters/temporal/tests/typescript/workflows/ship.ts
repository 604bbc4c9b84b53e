// A workflow as a shop had it before it heard of MCP: nothing of ours is in it, and nobody changes it for us.
import { condition, defineSignal, proxyActivities, setHandler } from '@temporalio/workflow';

interface Steps {
  NotifyApprover(orderId: string): Promise<string>;
  Ship(orderId: string): Promise<string>;
}

const { NotifyApprover, Ship } = proxyActivities<Steps>({ startToCloseTimeout: '10 seconds' });

export const approve = defineSignal<[ok: boolean, who: string]>('approve');
export const reject = defineSignal('reject');

export async function shipOrder(orderId: string): Promise<object> {
  let decision: { ok: boolean; who: string | null } | undefined;
  setHandler(approve, (ok, who) => void (decision = { ok, who }));
  setHandler(reject, () => void (decision = { ok: false, who: null }));
  await NotifyApprover(orderId);
  await condition(() => decision !== undefined);
  const { ok, who } = decision!;
  if (ok) await Ship(orderId);
  return { order_id: orderId, shipped: ok, approved_by: ok ? who : null };
}
