/**
 * Who this tab calls as, and in which namespace. It is kept until the tab is closed, and sent as headers, never as a
 * cookie. The first script of the page loads this, so it imports nothing.
 */
export interface Access {
  /** An API key; empty for none. */
  readonly token: string;
  /** Empty: the server decides. */
  readonly namespace: string;
}

export type AccessHeaders = Readonly<Record<string, string>>;

const NAME = 'anabranch-access';
export const NOBODY: Access = { token: '', namespace: '' };

/** A page in a file has no storage, and calls no server. */
export function readAccess(): Access {
  try {
    return { ...NOBODY, ...(JSON.parse(sessionStorage.getItem(NAME) ?? '{}') as Partial<Access>) };
  } catch {
    return NOBODY;
  }
}

/** Takes effect when the page is loaded again. */
export function writeAccess(access: Access): void {
  sessionStorage.setItem(NAME, JSON.stringify(access));
}

/** Headers of all calls of this tab. */
export function accessHeaders({ token, namespace }: Access = readAccess()): AccessHeaders {
  return {
    ...(token === '' ? {} : { authorization: `Bearer ${token}` }),
    ...(namespace === '' ? {} : { 'anabranch-namespace': namespace }),
  };
}

/** Reads an address of the server as this tab's caller. */
export function fetchHere(address: string, { headers = {}, ...init }: RequestInit = {}): Promise<Response> {
  return fetch(address, { ...init, headers: { ...(headers as AccessHeaders), ...accessHeaders() } });
}
