import { type Client, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import type { TestDatabase } from '../support/database.ts';
import { startTestServer } from '../support/test-server.ts';

/** Calls a server without authentication, for the keys of one with it: it is stopped before this resolves. */
export async function asAdmin<T>(
  database: TestDatabase,
  work: (admin: Client<typeof AdminService>) => Promise<T>,
): Promise<T> {
  await using server = await startTestServer({ database });
  return await work(createClient(AdminService, createGrpcTransport({ baseUrl: server.url })));
}
