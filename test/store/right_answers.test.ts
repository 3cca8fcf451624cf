import { expect, it } from 'vitest';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep } from '../support/steps.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { outsideSql } from './sql.ts';

it.each(ENGINES)(
  'M2, M3: the migration counts rollouts that had an attempt, and counts FAILED ones as no success, on %s',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const here = new RolloutScene(store);
    const { run, stage } = await here.place();
    const failed = await here.stage(run, { number: 7n, status: 'RUNNING' });
    const [first] = await here.queue(stage, 4);
    await here.queue(failed, 2);
    await here.cancel(first!);
    await here.complete(await here.claimOne({ stageId: stage.id }));
    await here.claimOne({ stageId: stage.id });
    const claim = await here.claimOne({ stageId: failed.id });
    await here.append(
      claim.trajectory,
      [0n, 1n, 2n, 3n].map((number) => makeStep(number)),
    );
    await here.fail(claim);
    await here.store.moveStage(here.caller, failed.id, 'fail', SILENT);
    const before = (await store.tallyRuns(here.namespace, [run.key])).get(run.key)!;
    expect(before.kinds[0]?.terminalRollouts).toEqual({ count: 3n, tried: 2n, turns: 3n });
    await store.close();

    const sql = await outsideSql(database);
    await sql.rows(`update rollouts set success = null where status = 'FAILED'`);
    await undoMigrations(sql, '0009_right_answers');
    await sql.close();

    const again = await openOn(database);
    const after = (await again.tallyRuns(here.namespace, [run.key])).get(run.key)!;
    expect(after.openStages).toEqual(before.openStages);
    // The expected count of the FAILED stage is not known any more.
    const abandonedStages = { turns: 3n, expectedTurns: 3, shares: 1, weightedShares: 3 };
    expect(after.kinds[0]).toMatchObject({ terminalRollouts: before.kinds[0]!.terminalRollouts, abandonedStages });
    expect((await new RolloutScene(again, here.namespace).rollout(claim.rollout.id)).success).toBe(false);
    await again.close();
  },
);
