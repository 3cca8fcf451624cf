import { invalidField } from './errors.ts';
import { shorten } from './ids.ts';

const NAMESPACE = /^[a-z0-9][a-z0-9-]{0,62}$/;

/**
 * The identity behind a call (N1). The namespace comes from the credential, or is `default` without one. Every query
 * filters by it.
 */
export interface Caller {
  readonly namespace: string;
  /** Name for the status history and the log; `anonymous` without a credential. */
  readonly actor: string;
}

export const ANONYMOUS: Caller = Object.freeze({ namespace: 'default', actor: 'anonymous' });

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
