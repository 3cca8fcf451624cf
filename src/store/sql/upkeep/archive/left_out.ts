import type { Digest } from '../../../../domain/ids.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import { readDigest } from '../../kit/values.ts';
import type { StatesEngine } from '../../log/engine.ts';
import { findStates } from '../../log/states/states.ts';

/** Steps whose states one statement reads. A step has at most 256 states. */
const STEPS = 256n;

/** States that one transaction renews. */
const RENEWED = 500;

/**
 * Keeps the states of a trajectory for a day after its deletion (S2): a trajectory that an archive leaves out has
 * brought states that later trajectories of the archive may name. `end` is the number after its last step.
 */
export async function renewStatesOf(
  engine: StatesEngine,
  namespace: string,
  { tree, key }: TrajectoryRef,
  begin: bigint,
  end: bigint,
): Promise<void> {
  let digests = new Set<Digest>();
  const renew = async () => {
    await findStates(engine, namespace, [...digests], true);
    digests = new Set();
  };
  for (let from = begin; from < end; from += STEPS) {
    const rows = await engine.db
      .selectFrom('state_refs as r')
      .innerJoin('states as s', 's.key', 'r.state')
      .select('s.digest')
      .where('r.tree', '=', tree)
      .where('r.trajectory', '=', key)
      .where('r.step_number', '>=', from)
      .where('r.step_number', '<', from + STEPS)
      .execute();
    for (const { digest } of rows) {
      digests.add(readDigest(digest));
      if (digests.size === RENEWED) await renew();
    }
  }
  await renew();
}
