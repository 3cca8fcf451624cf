import type { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import type { Methods } from '../method.ts';
import { exportArchive, importArchive } from './archive.ts';
import { backupDatabase } from './backup.ts';
import type { DatabaseParts } from './database_file.ts';
import { getDatabaseStats } from './stats.ts';
import { vacuumDatabase } from './vacuum.ts';
import { verifyDatabase } from './verify.ts';

export function adminMethods(database: DatabaseParts): Methods<typeof AdminService, keyof typeof AdminService.method> {
  return {
    getDatabaseStats: getDatabaseStats(database),
    verifyDatabase: { messages: verifyDatabase },
    backupDatabase: { messages: backupDatabase(database.file) },
    exportArchive: { messages: exportArchive },
    importArchive,
    vacuumDatabase: { messages: vacuumDatabase(database.file) },
  };
}
