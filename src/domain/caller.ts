import { EVERY_NAMESPACE, type Role } from './access.ts';
import { invalidField } from './errors.ts';
import { shorten } from './ids.ts';

const NAMESPACE = /^[a-z0-9][a-z0-9-]{0,62}$/;

/** Who calls, and in which namespace (N1). Every query filters by the namespace. */
export interface Caller {
  readonly namespace: string;
  /** Name of the principal, for the status history and the log; `anonymous` without authentication. */
  readonly actor: string;
  /** Set if the caller may move rollouts only that it has claimed itself (N2). */
  readonly ownClaimsOnly?: boolean;
}

/** A caller, and what the credential allows. */
export interface Principal extends Caller {
  readonly role: Role;
  /** The namespaces that may be named. `*`: all. */
  readonly namespaces: readonly string[];
}

export const DEFAULT_NAMESPACE = 'default';

/** The caller on a server without authentication, which names no namespace. */
export const ANONYMOUS: Principal = Object.freeze({
  namespace: DEFAULT_NAMESPACE,
  actor: 'anonymous',
  role: 'ADMIN',
  namespaces: Object.freeze([EVERY_NAMESPACE]),
});

/** The namespaces of a credential for which none was named. */
export function defaultNamespaces(role: Role): readonly string[] {
  return [role === 'ADMIN' ? EVERY_NAMESPACE : DEFAULT_NAMESPACE];
}

/** Checks a namespace from outside, before rows or keys are created with it (N1). Errors: INVALID_REQUEST. */
export function parseNamespace(text: string): string {
  if (!NAMESPACE.test(text)) {
    throw invalidField(
      'namespace',
      `must have 1 to 63 characters, only lower-case letters, digits and -, and not begin with -, got "${shorten(text)}"`,
    );
  }
  return text;
}
