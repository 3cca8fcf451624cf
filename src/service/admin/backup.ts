import { create } from '@bufbuild/protobuf';
import {
  type BackupDatabaseRequest,
  type BackupDatabaseResponse,
  BackupDatabaseResponseSchema,
} from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import type { Call } from '../method.ts';
import { type DatabaseFile, sqliteOnly } from './database_file.ts';

/** V2. Errors: SQLITE_ONLY, BACKUP_IN_PROGRESS, STORAGE_FULL, SERVER_DRAINING. */
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
