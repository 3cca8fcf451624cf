import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { statusName } from './status_name.ts';

/** Shapes differ, so that no status is shown by colour alone. */
const SHAPES: Readonly<Record<Status, string>> = {
  [Status.UNSPECIFIED]: 'M8 8h.01',
  [Status.PENDING]: 'M8 3a5 5 0 1 0 0 10a5 5 0 1 0 0-10',
  [Status.INITIALIZING]: 'M8 3a5 5 0 0 1 5 5M8 3a5 5 0 0 0 0 10',
  [Status.RUNNING]: 'M6 4l6 4l-6 4z',
  [Status.PAUSED]: 'M6 4v8M10 4v8',
  [Status.COMPLETED]: 'M3.5 8.5l3 3l6-7',
  [Status.FAILED]: 'M4 4l8 8M12 4l-8 8',
  [Status.CANCELLED]: 'M3.5 8h9',
};

/** A status as a shape and a word. */
export function StatusMark({ status }: { readonly status: Status }) {
  return (
    <span class={`status s-${statusName(status)}`} title={statusName(status)}>
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <path d={SHAPES[status] ?? ''} />
      </svg>
      {statusName(status)}
    </span>
  );
}
