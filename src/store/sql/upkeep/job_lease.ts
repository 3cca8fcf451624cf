import { formatInstant, parseInstant } from '../../../domain/instant.ts';
import { NANOS_PER_MS } from '../../../domain/lease.ts';
import type { Engine } from '../kit/engine.ts';
import { write } from '../kit/transaction.ts';

/** The one row: instances share all background jobs. */
const ALL_JOBS = 'all';

export async function holdJobs(engine: Engine, holder: string, leaseMs: number): Promise<boolean> {
  return write(engine, async (tx) => {
    const now = await tx.readNow();
    const end = formatInstant(parseInstant(now) + BigInt(leaseMs) * NANOS_PER_MS, 6);
    const lease = { holder, end_time: end };
    const held = await tx.db
      .insertInto('job_leases')
      .values({ jobs: ALL_JOBS, ...lease })
      .onConflict((conflict) =>
        conflict
          .column('jobs')
          .doUpdateSet(lease)
          // A lease that ends later than a new one was taken while the clock was ahead.
          .where((eb) =>
            eb.or([
              eb('job_leases.holder', '=', holder),
              eb('job_leases.end_time', '<=', now),
              eb('job_leases.end_time', '>', end),
            ]),
          ),
      )
      .returning('holder')
      .execute();
    return held.length > 0;
  });
}

export async function releaseJobs(engine: Engine, holder: string): Promise<void> {
  await write(engine, async ({ db }) => {
    await db.deleteFrom('job_leases').where('holder', '=', holder).execute();
  });
}
