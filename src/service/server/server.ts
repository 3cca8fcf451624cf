import type { ServerService } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import type { Methods } from '../method.ts';
import { watch } from './watch.ts';

/** What only the composition root knows about the server. */
export interface ServerInfo {
  readonly version: string;
  /** Limits and bounding settings by the names of `docs/limitations.md`. */
  readonly limits: Readonly<Record<string, number>> & { readonly messageValues: number };
}

export function serverMethods({
  version,
  limits,
}: ServerInfo): Methods<typeof ServerService, 'getServerInfo' | 'watch'> {
  const info = {
    version,
    limits: Object.fromEntries(Object.entries(limits).map(([name, value]) => [name, BigInt(value)])),
  };
  return { getServerInfo: async () => info, watch };
}
