import type { DescMethod, MessageShape } from '@bufbuild/protobuf';
import type { PageArgs } from '../../app/page_token.ts';
import type { Caller } from '../../domain/caller.ts';
import { pageBindingOf } from './digest.ts';

/** Returns what every list takes beside its filter. */
export function pageArgsOf<M extends DescMethod>(
  caller: Caller,
  method: M,
  request: MessageShape<M['input']> & { readonly pageSize: number; readonly pageToken: string },
): PageArgs {
  const { pageSize, pageToken } = request;
  return { pageSize, pageToken, binding: pageBindingOf(caller, method, request) };
}
