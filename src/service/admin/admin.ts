import type { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import type { Methods } from '../method.ts';
import { verifyDatabase } from './verify.ts';

export const adminMethods: Methods<typeof AdminService, 'verifyDatabase'> = {
  verifyDatabase: { messages: verifyDatabase },
};
