// The steps of an ordinary shop.

export async function NotifyApprover(orderId) {
  return `somebody was told about ${orderId}`;
}

export async function Ship(orderId) {
  return `shipped ${orderId}`;
}
