import { type Identity, unauthenticated, withoutRole } from '../domain/access.ts';
import type { AnabranchError } from '../domain/errors.ts';
import { type Proof, SUBJECT_LENGTH } from '../domain/identity.ts';
import type { Instant } from '../domain/instant.ts';
import type { Mapping, Subject } from './mapping.ts';

/** What names of subjects may have: they are written into rows and logs. */
const NAME = /^[ -~]+$/u;

export function isName(text: unknown): text is string {
  return typeof text === 'string' && text.length <= SUBJECT_LENGTH && NAME.test(text);
}

interface Shown {
  readonly subject: Subject;
  /** Of the principal, if the mapping gives none. It begins with the kind: names of API keys seldom do. */
  readonly name: string;
  readonly expireTime: Instant | undefined;
  /** Why the credential itself is not accepted any more. */
  readonly fault: () => AnabranchError | undefined;
}

/**
 * Proves what the mapping gives to a subject, until the mapping gives it something else. Errors: PERMISSION_DENIED.
 */
export function proofOf(shown: Shown, current: () => Mapping): Proof {
  let seen = current();
  const identity = identityOf(shown, seen);
  if (identity === undefined) throw withoutRole();
  const fault = () => {
    const own = shown.fault();
    if (own !== undefined || seen === current()) return own;
    const now = identityOf(shown, current());
    if (now === undefined) return withoutRole();
    if (JSON.stringify(plain(now)) !== JSON.stringify(plain(identity))) return unauthenticated('changed');
    seen = current();
    return undefined;
  };
  return { identity, fault };
}

function identityOf({ subject, name, expireTime }: Shown, mapping: Mapping): Identity | undefined {
  const grant = mapping.grantOf(subject);
  return grant && { name: grant.name ?? name, role: grant.role, namespaces: grant.namespaces, expireTime };
}

function plain({ name, role, namespaces }: Identity): unknown {
  return [name, role, namespaces];
}
