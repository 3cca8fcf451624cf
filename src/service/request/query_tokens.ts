import type { DescMethod, MessageShape } from '@bufbuild/protobuf';
import { AnabranchError } from '../../domain/errors.ts';
import type { Call } from '../method.ts';
import { tokenBindingOf } from './digest.ts';

/** Where a page or message ends: texts for the method that continues there. */
export type Cursor = readonly string[];

/** The tokens of one query (RD12). Those of any other query do not open. */
export interface QueryTokens {
  seal(cursor: Cursor): Promise<string>;
  /** Returns the position of a token; undefined if it is empty. Errors: INVALID_PAGE_TOKEN. */
  open<Position>(token: string, positionOf: (cursor: Cursor) => Position): Promise<Position | undefined>;
}

/** Shorter cursors are padded, so that the length of a token does not tell how large its numbers are. */
const CURSOR_LENGTH = 48;

/** `key`: of the resource that an id of the request names now, so that tokens end with the resource. */
export function tokensOf<M extends DescMethod>(
  { app, caller }: Pick<Call, 'app' | 'caller'>,
  method: M,
  request: MessageShape<M['input']>,
  key?: bigint,
): QueryTokens {
  const binding = tokenBindingOf(caller, method, request, key);
  return {
    seal: (cursor) => app.tokens.seal(JSON.stringify(cursor).padEnd(CURSOR_LENGTH), binding),
    async open(token, positionOf) {
      if (token === '') return undefined;
      const text = await app.tokens.open(token, binding);
      try {
        if (text !== undefined) return positionOf(JSON.parse(text) as Cursor);
      } catch {
        // Another version of the server wrote the cursor in another form.
      }
      throw invalidToken(method);
    },
  };
}

function invalidToken({ input }: DescMethod): AnabranchError {
  const [field, advice, rule] = input.fields.some(({ name }) => name === 'resume_token') ? RESUME_TOKEN : PAGE_TOKEN;
  return new AnabranchError('INVALID_PAGE_TOKEN', `${field}: belongs to another query: ${advice}.`, {
    violations: [{ field, description: `must be ${rule} of the same query` }],
  });
}

const PAGE_TOKEN = [
  'page_token',
  'pass next_page_token of the previous page with all other fields unchanged, or leave it empty for the first page',
  'next_page_token of a page',
] as const;

const RESUME_TOKEN = [
  'resume_token',
  'pass resume_token of a message with all other fields unchanged, or leave it empty to begin again',
  'resume_token of a message',
] as const;
