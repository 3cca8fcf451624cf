import { type Hint, runHint, trajectoryHint } from '../../../../domain/change.ts';

/** Returns the hints of rollouts that changed: of their runs, and of the trajectories of their attempts. */
export function rolloutHints(
  rows: readonly { readonly run: bigint; readonly trajectory: bigint | null }[],
): readonly Hint[] {
  const hints = rows.flatMap(({ run, trajectory }) =>
    trajectory === null ? [runHint(run)] : [runHint(run), trajectoryHint(trajectory)],
  );
  return [...new Set(hints)];
}
