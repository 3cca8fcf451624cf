/** Who calls (N1). The namespace comes from the credential, `default` without one; every query binds it. */
export interface Caller {
  readonly namespace: string;
  /** Who, in words for the status history and the log; `anonymous` without a credential. */
  readonly actor: string;
}

export const ANONYMOUS: Caller = Object.freeze({ namespace: 'default', actor: 'anonymous' });
