/** What the address of the page shows. Everything that is on screen can be restored from it. */
export interface Address {
  readonly view: 'home' | 'run' | 'tree' | 'rollout' | 'group' | 'compare' | 'search' | 'unknown';
  /** Id of the resource in the path. Empty if the view has none. */
  readonly id: string;
  readonly query: URLSearchParams;
}

/** Rows of a list. */
export const LISTED = 200;

const ROUTES: readonly (readonly [RegExp, Address['view']])[] = [
  [/^\/(?:runs\/?)?$/, 'home'],
  [/^\/trees\/?$/, 'home'],
  [/^\/runs\/[^/]+\/groups\/([^/]+)$/, 'group'],
  [/^\/runs\/([^/]+)$/, 'run'],
  [/^\/trees\/([^/]+)$/, 'tree'],
  [/^\/rollouts\/([^/]+)$/, 'rollout'],
  [/^\/compare$/, 'compare'],
  [/^\/search$/, 'search'],
];

export function parseAddress(pathname: string, search: string): Address {
  const query = new URLSearchParams(search);
  for (const [pattern, view] of ROUTES) {
    const found = pattern.exec(pathname);
    if (found !== null) return { view, id: decoded(found[1] ?? ''), query };
  }
  return { view: 'unknown', id: '', query };
}

/** Values of a query. Undefined, empty and false values are left out. */
export type Query = Readonly<Record<string, string | number | bigint | boolean | undefined>>;

/** Returns an address with its query in the given order, so that equal views have equal addresses. */
export function addressOf(pathname: string, query: Query = {}): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== '' && value !== false) params.set(name, String(value));
  }
  const text = params.toString();
  return text === '' ? pathname : `${pathname}?${text}`;
}

/** Returns the address with some values of its query replaced. */
export function changedAddress(pathname: string, search: string, changes: Query): string {
  return addressOf(pathname, { ...Object.fromEntries(new URLSearchParams(search)), ...changes });
}

/** Returns the step number of a query value, or undefined if the value is none. */
export function stepOf(text: string | null): number | undefined {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
