import { Role as WireRole } from '../../../gen/es/anabranch/v1/access_pb.js';
import type { Role } from '../../domain/access.ts';

/** Returns undefined for ROLE_UNSPECIFIED. */
export function toRole(role: WireRole): Role | undefined {
  return role === WireRole.UNSPECIFIED ? undefined : (WireRole[role] as Role);
}

export function fromRole(role: Role): WireRole {
  return WireRole[role];
}
