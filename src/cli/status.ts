/** Words and colours of statuses. */
import { type Run, StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Paint } from './columns.ts';

/** `completed`: the status in lower case. */
export function statusName(status: Status): string {
  return (Status[status] ?? 'unknown').toLowerCase();
}

/** `running`, or `running, stale`. */
export function runStatus({ status, stale }: Pick<Run, 'status' | 'stale'>): string {
  return statusName(status) + (stale ? STALE : '');
}

const STALE = ', stale';

/** Returns the colour of a status. `status` is a result of statusName or runStatus. */
export function colourOf(status: string, paint: Paint): (text: string) => string {
  if (status.endsWith(STALE) || status === 'cancelled') return paint.yellow;
  if (status === 'completed') return paint.green;
  if (status === 'failed') return paint.red;
  if (status === 'deleted') return paint.dim;
  return paint.cyan;
}

export function isTerminal(status: Status): boolean {
  return status === Status.COMPLETED || status === Status.FAILED || status === Status.CANCELLED;
}

/** `train step`: the kind of a stage in lower case. */
export function kindName(kind: StageKind): string {
  return (StageKind[kind] ?? 'stage').toLowerCase().replaceAll('_', ' ');
}
