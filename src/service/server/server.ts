import type { ServerService } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { fromRole } from '../convert/role.ts';
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
  const getServerInfo: Methods<typeof ServerService, 'getServerInfo'>['getServerInfo'] = async (
    _request,
    { caller },
  ) => {
    const { actor: name, role, namespaces, namespace } = caller;
    return { ...info, caller: { name, role: fromRole(role), namespaces: [...namespaces], namespace } };
  };
  return { getServerInfo, watch };
}
