import { invalidField } from './errors.ts';
import { shorten } from './ids.ts';

const NAMESPACE = /^[a-z0-9][a-z0-9-]{0,62}$/;

/** Who calls (N1). The namespace comes from the credential, `default` without one; every query binds it. */
export interface Caller {
  readonly namespace: string;
  /** Who, in words for the status history and the log; `anonymous` without a credential. */
  readonly actor: string;
}

export const ANONYMOUS: Caller = Object.freeze({ namespace: 'default', actor: 'anonymous' });

/** Checks a namespace that comes from outside, before any row or key is made with it (N1). Errors: INVALID_REQUEST. */
export function parseNamespace(text: string): string {
  if (!NAMESPACE.test(text)) {
    throw invalidField(
      'namespace',
      `must have 1 to 63 characters, only lower-case letters, digits and -, and not begin with -, got "${shorten(text)}"`,
    );
  }
  return text;
}
