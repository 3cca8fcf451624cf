import { Status } from '../../gen/es/anabranch/v1/status_pb.js';

const NAMES: Readonly<Record<Status, string>> = {
  [Status.UNSPECIFIED]: 'unknown',
  [Status.PENDING]: 'pending',
  [Status.INITIALIZING]: 'initializing',
  [Status.RUNNING]: 'running',
  [Status.PAUSED]: 'paused',
  [Status.COMPLETED]: 'completed',
  [Status.FAILED]: 'failed',
  [Status.CANCELLED]: 'cancelled',
};

export function statusName(status: Status): string {
  return NAMES[status] ?? 'unknown';
}
