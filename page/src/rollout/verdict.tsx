import type { Rollout } from '../../../gen/es/anabranch/v1/rollout_pb.js';

/** The verdict of a rollout, as a shape and a word. */
export function Verdict({ rollout }: { readonly rollout: Pick<Rollout, 'success' | 'override'> }) {
  const { success, override } = rollout;
  if (success === undefined) return <span class="dim">no verdict</span>;
  return (
    <span class={`status ${success ? 's-completed' : 's-failed'}`}>
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <path d={success ? 'M3.5 8.5l3 3l6-7' : 'M4 4l8 8M12 4l-8 8'} />
      </svg>
      {success ? 'success' : 'no success'}
      {override?.success !== undefined && <span class="dim">by hand</span>}
    </span>
  );
}
