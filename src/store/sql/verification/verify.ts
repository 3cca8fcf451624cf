import { sql } from 'kysely';
import type { TrajectoryRef } from '../../../domain/trajectory.ts';
import type { StorageFault, VerificationProgress } from '../../../domain/verification.ts';
import type { Engine } from '../engine.ts';
import { checkTotals } from '../usage/totals.ts';
import { confirmed } from './confirmed.ts';
import { checkHeads, type HeadsPage } from './heads.ts';
import { checkRelations } from './relations.ts';
import { checkStates } from './states.ts';
import { checkTrajectory } from './trajectory.ts';

/** V1. Keeps a page of rows and some decoded states in memory. */
export async function* verify(engine: Engine): AsyncGenerator<VerificationProgress, void, undefined> {
  const totals = await countRows(engine);
  let [doneSteps, doneStates] = [0n, 0n];
  const progress = (faults: readonly StorageFault[]): VerificationProgress => ({
    ...{ doneSteps, doneStates, faults },
    totalSteps: largest(totals.steps, doneSteps),
    totalStates: largest(totals.states, doneStates),
  });
  yield progress([]);
  for await (const check of checkRelations(engine)) yield progress(await confirmed(check));
  yield progress(await confirmed(() => checkTotals(engine)));
  for (let after: TrajectoryRef | undefined = { tree: 0n, key: 0n }; after !== undefined; ) {
    const { page, faults }: CheckedPage = await checkPage(engine, after);
    yield progress(faults);
    for (const trajectory of page.trajectories) {
      const found = await checkTrajectory(engine, trajectory);
      doneSteps += trajectory.steps;
      yield progress(found);
    }
    after = page.after;
  }
  for await (const { done, faults } of checkStates(engine)) {
    doneStates += done;
    yield progress(faults);
  }
}

interface CheckedPage {
  readonly page: HeadsPage;
  readonly faults: readonly StorageFault[];
}

async function checkPage(engine: Engine, after: TrajectoryRef): Promise<CheckedPage> {
  let page: HeadsPage | undefined;
  const faults = await confirmed(async () => {
    page = await checkHeads(engine, after);
    return page.faults;
  });
  return { page: page!, faults };
}

async function countRows(engine: Engine): Promise<{ readonly steps: bigint; readonly states: bigint }> {
  const { rows } = await sql<{ steps: bigint; states: bigint }>`
    select cast((select coalesce(sum(next_step_number - coalesce(branch_point + 1, 0)), 0)
        from ${engine.table('trajectories')}) as bigint) as steps,
      cast((select count(*) from ${engine.table('states')}) as bigint) as states`.execute(engine.db);
  return rows[0]!;
}

function largest(a: bigint, b: bigint): bigint {
  return a > b ? a : b;
}
