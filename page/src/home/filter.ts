import { Status } from '../../../gen/es/anabranch/v1/status_pb.js';
import { ListOrder } from '../../../gen/es/anabranch/v1/trajectory_pb.js';

/** Which runs are listed, and in which order, as the address says. */
export interface RunFilter {
  /** Part of a name or of the value of a label. */
  readonly text: string;
  readonly statuses: readonly Status[];
  readonly labels: Readonly<Record<string, string>>;
  readonly order: ListOrder;
  readonly ascending: boolean;
}

export const STATUSES: Readonly<Record<string, Status>> = {
  pending: Status.PENDING,
  running: Status.RUNNING,
  paused: Status.PAUSED,
  completed: Status.COMPLETED,
  failed: Status.FAILED,
  cancelled: Status.CANCELLED,
};

export const ORDERS: Readonly<Record<string, { readonly order: ListOrder; readonly name: string }>> = {
  created: { order: ListOrder.CREATE_TIME, name: 'Created' },
  updated: { order: ListOrder.UPDATE_TIME, name: 'Updated' },
  name: { order: ListOrder.NAME, name: 'Name' },
  reward: { order: ListOrder.REWARD, name: 'Reward' },
};

/** Texts of the server's filters have at most this many bytes. */
const MOST_BYTES = 256;

/** Reads the filter of an address. Addresses can contain anything: what is not known does not filter. */
export function filterOf(query: URLSearchParams): RunFilter {
  const named = query.get('status') ?? '';
  const status = Object.hasOwn(STATUSES, named) ? STATUSES[named] : undefined;
  const wanted = query.get('order') ?? '';
  const order = (Object.hasOwn(ORDERS, wanted) ? ORDERS[wanted]?.order : undefined) ?? ListOrder.CREATE_TIME;
  return {
    text: bounded(query.get('text') ?? ''),
    statuses: status === undefined ? [] : [status],
    labels: labelsOf(query.get('label') ?? ''),
    order,
    // Names begin with A, everything else with the newest or the highest.
    ascending: (order === ListOrder.NAME) !== (query.get('reverse') === 'true'),
  };
}

/** Reads `name=value` pairs that are separated by commas. */
function labelsOf(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  for (const pair of text.split(',').slice(0, 16)) {
    const at = pair.indexOf('=');
    if (at > 0) labels[bounded(pair.slice(0, at).trim())] = bounded(pair.slice(at + 1).trim());
  }
  return labels;
}

function bounded(text: string): string {
  let kept = text.replaceAll('\0', '').toWellFormed();
  while (new TextEncoder().encode(kept).length > MOST_BYTES) kept = kept.slice(0, -1).toWellFormed();
  return kept;
}
