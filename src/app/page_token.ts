import type { Caller } from '../domain/caller.ts';
import { AnabranchError } from '../domain/errors.ts';
import { LIMITS } from '../domain/limits.ts';
import { stateDigest } from '../domain/state_digest.ts';

/** What every list call takes beside its filter. */
export interface PageArgs {
  /** 0: the default; more than the cap: the cap. */
  readonly pageSize: number;
  /** Empty: the first page. */
  readonly pageToken: string;
}

export interface PageOf<Item> {
  readonly items: readonly Item[];
  /** Empty: this was the last page. */
  readonly nextPageToken: string;
}

/** What a token is bound to: who asks, by which RPC, with which filter and order. A token of another query is refused. */
export interface Query {
  readonly caller: Caller;
  readonly rpc: string;
  /** Every field that decides what is listed and in which order, in a fixed order. */
  readonly filter: readonly unknown[];
}

export function pageLimit(pageSize: number): number {
  return pageSize <= 0 ? LIMITS.defaultPageSize : Math.min(pageSize, LIMITS.maxPageSize);
}

export function makePageToken(query: Query, cursor: readonly string[]): string {
  return Buffer.from(JSON.stringify([queryDigest(query), ...cursor])).toString('base64url');
}

/** The cursor that `makePageToken` was given for the same query; undefined for the first page. */
export function readPageToken(query: Query, token: string): string[] | undefined {
  if (token === '') return undefined;
  const [digest, ...cursor] = decode(token);
  if (digest !== queryDigest(query)) throw invalidPageToken();
  return cursor;
}

export function invalidPageToken(): AnabranchError {
  return new AnabranchError(
    'INVALID_PAGE_TOKEN',
    'page_token: is not of this query: pass next_page_token of the page before, with all other fields unchanged, or leave it empty to begin again.',
    { violations: [{ field: 'page_token', description: 'must be next_page_token of a page of the same query' }] },
  );
}

/** A whole number of a cursor, of at most so many bits: 64 is what the databases know. */
export function cursorInt(cursor: readonly string[], index: number, bits = 64): bigint {
  const text = cursor[index];
  if (text === undefined || !/^-?\d{1,40}$/.test(text)) throw invalidPageToken();
  const number = BigInt(text);
  if (BigInt.asIntN(bits, number) !== number) throw invalidPageToken();
  return number;
}

function decode(token: string): string[] {
  try {
    const parsed: unknown = JSON.parse(Buffer.from(token, 'base64url').toString());
    if (Array.isArray(parsed) && parsed.every((part) => typeof part === 'string')) return parsed;
  } catch {
    // not one of ours: refused below
  }
  throw invalidPageToken();
}

function queryDigest({ caller, rpc, filter }: Query): string {
  const text = JSON.stringify([caller.namespace, rpc, filter], (_key, value: unknown) => {
    if (typeof value === 'bigint') return `${value}n`;
    if (value instanceof Map) return [...value].sort(([a], [b]) => (a < b ? -1 : 1));
    if (typeof value === 'number' && !Number.isFinite(value)) return `${value}`;
    return value;
  });
  return stateDigest(Buffer.from(text)).slice(0, 32);
}
