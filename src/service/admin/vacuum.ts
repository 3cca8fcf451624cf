import { create } from '@bufbuild/protobuf';
import {
  type VacuumDatabaseRequest,
  type VacuumDatabaseResponse,
  VacuumDatabaseResponseSchema,
} from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import type { Call } from '../method.ts';
import { type DatabaseFile, sqliteOnly } from './database_file.ts';

/** V3. Errors: SQLITE_ONLY, STORAGE_FULL, SERVER_DRAINING. */
export function vacuumDatabase(file: DatabaseFile | undefined) {
  return async function* (
    _request: VacuumDatabaseRequest,
    { app, signal }: Call,
  ): AsyncGenerator<VacuumDatabaseResponse, void, undefined> {
    if (file === undefined) throw sqliteOnly('Its autovacuum reuses the space of deleted rows');
    for await (const progress of file.vacuum(signal, 0)) {
      app.drain.throwIfBegun();
      yield create(VacuumDatabaseResponseSchema, progress);
    }
  };
}
