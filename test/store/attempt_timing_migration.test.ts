import { expect, it } from 'vitest';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { outsideSql } from './sql.ts';
import { letPass } from './time_travel.ts';

it.each(ENGINES)(
  'Q3: the migration gives rollouts the default delay and suspends the leases of paused runs, on %s',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const here = new RolloutScene(store);
    const { run, stage } = await here.place();
    const [held = '', waiting = ''] = await here.queue(stage, 2);
    const claim = await here.claimOne({ leaseMs: 60_000 });
    await here.move(run, 'pause');
    await store.close();

    const sql = await outsideSql(database);
    await undoMigrations(sql, '0012_attempt_timing');
    await sql.rows(`update rollouts set claimable_time = null where id = '${waiting}'`);
    const again = new RolloutScene(await openOn(database), here.namespace);
    const given = { attemptTimeoutMs: undefined, retryDelayMs: 1000, refundedAttempts: 0 };
    expect(await again.rollout(waiting)).toMatchObject({ ...given, status: 'PENDING', attempt: 0 });
    expect(await again.rollout(held)).toMatchObject({ ...given, status: 'INITIALIZING', attempt: 1 });
    await letPass(sql, again, 600);
    await again.move(run, 'resume');
    expect(await again.store.sweepLeases(100)).toBe(0);
    expect((await again.claimOne()).rollout.id).toBe(waiting);
    const released = await again.release(tokenOf(claim));
    expect(released.claimableTime! - released.updateTime).toBe(1_000_000_000n);
    await sql.close();
    await again.store.close();
  },
);
