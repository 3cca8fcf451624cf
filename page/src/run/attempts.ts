import type { Attempt, Rollout } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type { AnabranchClient } from '../../../src/client/web/index.ts';

/** Attempts of a rollout, as of a version of it. */
export interface AttemptsRead {
  readonly version: string;
  readonly attempts: readonly Attempt[];
}

/** Rollouts whose attempts are read: the newest. */
export const MOST_ROLLOUTS = 200;

/** Number of calls that run at the same time. */
const TOGETHER = 6;

/** Attempts change with these. Turns and rewards do not change where an attempt is on the axis of time. */
export function versionOf({ attempt, status }: Pick<Rollout, 'attempt' | 'status'>): string {
  return `${attempt} ${status}`;
}

/** Returns the newest rollouts that have begun, up to a maximum. */
export function begunOf(rollouts: Iterable<Rollout>): readonly Rollout[] {
  const begun = [...rollouts].filter(({ attempt }) => attempt > 0);
  return begun
    .sort((a, b) => Number((b.startTime?.seconds ?? 0n) - (a.startTime?.seconds ?? 0n)))
    .slice(0, MOST_ROLLOUTS);
}

/** Returns the attempts of rollouts by id. Reads only those that have changed. */
export async function readAttempts(
  api: Pick<AnabranchClient, 'rollouts'>,
  rollouts: readonly Rollout[],
  known: ReadonlyMap<string, AttemptsRead>,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, AttemptsRead>> {
  const found = new Map<string, AttemptsRead>();
  const due: Rollout[] = [];
  for (const rollout of rollouts) {
    const read = known.get(rollout.id);
    if (read?.version === versionOf(rollout)) found.set(rollout.id, read);
    else due.push(rollout);
  }
  const next = due.values();
  const readNext = async () => {
    for (const rollout of next) {
      const { attempts } = await api.rollouts.getRollout({ rolloutId: rollout.id }, { signal });
      found.set(rollout.id, { version: versionOf(rollout), attempts });
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, readNext));
  return found;
}
