import { sql } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { StorageFault, VerificationProgress } from '../../../../domain/verification.ts';
import type { Engine } from '../../kit/engine.ts';
import { confirmed } from './confirmed.ts';
import { checkDatabase, type IntegrityEngine, unreadable } from './database.ts';
import { checkHeads, type HeadsPage } from './heads.ts';
import { checkRelations } from './relations.ts';
import { checkStates } from './states.ts';
import { checkTokenKeys } from './token_keys.ts';
import { checkTrajectory } from './trajectory.ts';
import { checkValues } from './values.ts';

/** V1. Keeps a page of rows and some decoded states in memory. What cannot be read is a fault, and the rest is read. */
export async function* verify(engine: IntegrityEngine): AsyncGenerator<VerificationProgress, void, undefined> {
  let totals = { steps: 0n, states: 0n };
  let [doneSteps, doneStates] = [0n, 0n];
  const progress = (faults: readonly StorageFault[]): VerificationProgress => ({
    doneSteps,
    doneStates,
    faults,
    totalSteps: largest(totals.steps, doneSteps),
    totalStates: largest(totals.states, doneStates),
  });
  const faultsOf = async (what: string, check: () => Promise<readonly StorageFault[]>) => {
    try {
      return await check();
    } catch (error) {
      return [unreadable(engine, what, error)];
    }
  };
  const counting = faultsOf('the number of rows', async () => {
    totals = await countRows(engine);
    return [];
  });
  yield progress(await counting);
  for await (const faults of checkDatabase(engine)) yield progress(faults);
  yield progress(await faultsOf('keys of tokens', () => confirmed(() => checkTokenKeys(engine))));
  for await (const check of checkValues(engine)) yield progress(await faultsOf('rows', () => confirmed(check)));
  for await (const check of checkRelations(engine)) yield progress(await faultsOf('rows', () => confirmed(check)));
  for (let after: TrajectoryRef | undefined = { tree: 0n, key: 0n }; after !== undefined; ) {
    const from: TrajectoryRef = after;
    let page: HeadsPage | undefined;
    const what = `trajectories after tree ${from.tree}, key ${from.key}`;
    yield progress(
      await faultsOf(what, () =>
        confirmed(async () => {
          page = await checkHeads(engine, from);
          return page.faults;
        }),
      ),
    );
    for (const trajectory of page?.trajectories ?? []) {
      const found = await faultsOf(`trajectory ${trajectory.id}`, async () => {
        const { faults, smallStates } = await checkTrajectory(engine, trajectory);
        doneStates += smallStates;
        totals = { ...totals, states: totals.states + smallStates };
        return faults;
      });
      doneSteps += trajectory.steps;
      yield progress(found);
    }
    after = page?.after;
  }
  try {
    for await (const { done, faults } of checkStates(engine)) {
      doneStates += done;
      yield progress(faults);
    }
  } catch (error) {
    yield progress([unreadable(engine, 'states', error)]);
  }
}

async function countRows(engine: Engine): Promise<{ readonly steps: bigint; readonly states: bigint }> {
  const { rows } = await sql<{ steps: bigint; states: bigint }>`
    select cast((select coalesce(sum(next_step_number - coalesce(branch_point + 1, 0)), 0)
        from ${engine.sql.table('trajectories')}) as bigint) as steps,
      cast((select count(*) from ${engine.sql.table('states')}) as bigint) as states`.execute(engine.db);
  return rows[0]!;
}

function largest(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}
