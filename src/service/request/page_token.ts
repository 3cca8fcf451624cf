import type { DescMethod, MessageShape } from '@bufbuild/protobuf';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import { pageBindingOf } from './digest.ts';

/** What every list call takes beside its filter. */
export interface PageArgs {
  /** 0: the default; more than the cap: the cap. */
  readonly pageSize: number;
  /** Empty: the first page. */
  readonly pageToken: string;
  /**
   * What the token is bound to: who asks, by which RPC, with which filter and order. A token of another query is
   * refused.
   */
  readonly binding: string;
}

export interface PageOf<Item> {
  readonly items: Item[];
  /** Empty: this was the last page. */
  readonly nextPageToken: string;
}

export function pageArgsOf<M extends DescMethod>(
  caller: Caller,
  method: M,
  request: MessageShape<M['input']> & { readonly pageSize: number; readonly pageToken: string },
): PageArgs {
  const { pageSize, pageToken } = request;
  return { pageSize, pageToken, binding: pageBindingOf(caller, method, request) };
}

export function pageLimit(pageSize: number): number {
  return pageSize <= 0 ? LIMITS.defaultPageSize : Math.min(pageSize, LIMITS.maxPageSize);
}

export function makePageToken(binding: string, cursor: readonly string[]): string {
  return Buffer.from(JSON.stringify([binding, ...cursor])).toString('base64url');
}

/** Returns the cursor that `makePageToken` was given; undefined for the first page. Errors: INVALID_PAGE_TOKEN. */
export function readPageToken({ binding, pageToken }: Omit<PageArgs, 'pageSize'>): string[] | undefined {
  if (pageToken === '') return undefined;
  const [bound, ...cursor] = decode(pageToken);
  if (bound !== binding) throw invalidPageToken();
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
