import type { DatabaseParts } from '../../src/service/admin/admin.ts';

/** For handlers of tests that do not call AdminService. */
export const NO_DATABASE: DatabaseParts = {
  sizeOf: async () => ({ bytes: 0n, freeBytes: undefined }),
  file: undefined,
};
