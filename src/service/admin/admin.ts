import type { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import type { Methods } from '../method.ts';
import { backupDatabase } from './backup.ts';
import type { DatabaseFile } from './database_file.ts';
import { vacuumDatabase } from './vacuum.ts';
import { verifyDatabase } from './verify.ts';

/** `file` is undefined on Postgres. */
export function adminMethods(
  file: DatabaseFile | undefined,
): Methods<typeof AdminService, 'verifyDatabase' | 'backupDatabase' | 'vacuumDatabase'> {
  return {
    verifyDatabase: { messages: verifyDatabase },
    backupDatabase: { messages: backupDatabase(file) },
    vacuumDatabase: { messages: vacuumDatabase(file) },
  };
}
