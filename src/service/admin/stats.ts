import type { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import type { Unary } from '../method.ts';
import type { DatabaseParts } from './database_file.ts';

/** V4. */
export function getDatabaseStats({
  sizeOf,
}: Pick<DatabaseParts, 'sizeOf'>): Unary<(typeof AdminService)['method']['getDatabaseStats']> {
  return async (_request, { app, caller }) => {
    const [counts, largestRuns, { bytes, freeBytes }] = await Promise.all([
      app.store.countRows(),
      app.store.findLargestRuns(caller.namespace),
      sizeOf(),
    ]);
    return { ...counts, largestRuns: [...largestRuns], bytes, ...(freeBytes === undefined ? {} : { freeBytes }) };
  };
}
