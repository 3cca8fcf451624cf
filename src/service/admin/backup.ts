import { create } from '@bufbuild/protobuf';
import {
  type BackupDatabaseRequest,
  type BackupDatabaseResponse,
  BackupDatabaseResponseSchema,
} from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { AnabranchError } from '../../domain/errors.ts';
import type { Call } from '../method.ts';
import type { DatabaseFile } from './database_file.ts';

/** V2. Errors: SQLITE_ONLY, STORAGE_FULL, SERVER_DRAINING. */
export function backupDatabase(file: DatabaseFile | undefined) {
  return async function* (
    _request: BackupDatabaseRequest,
    { app, signal }: Call,
  ): AsyncGenerator<BackupDatabaseResponse, void, undefined> {
    if (file === undefined) throw sqliteOnly('Back it up with pg_dump, or with the tools of its cluster');
    for await (const piece of file.backUp(signal)) {
      app.drain.throwIfBegun();
      yield create(BackupDatabaseResponseSchema, piece);
    }
  };
}

function sqliteOnly(instead: string): AnabranchError {
  return new AnabranchError(
    'SQLITE_ONLY',
    `The database of this server is Postgres, and the call works on SQLite only. ${instead}: see docs/operations.md.`,
  );
}
