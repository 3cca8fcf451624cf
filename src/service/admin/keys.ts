import type { MessageInitShape } from '@bufbuild/protobuf';
import { AdminService, type ApiKeySchema } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { type ApiKey, EVERY_NAMESPACE, newSecret, type Role, secretDigest } from '../../domain/access.ts';
import { DEFAULT_NAMESPACE } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { rowBytes } from '../../stream/row_bytes.ts';
import { pageByKey } from '../answer/page.ts';
import { fromRole, toRole } from '../convert/role.ts';
import { fromInstant, required, toMillis } from '../convert/values.ts';
import type { Methods } from '../method.ts';
import { pageArgsOf } from '../request/page_token.ts';

/** What operators do with API keys and namespaces (N2). */
export const keyMethods: Methods<typeof AdminService, 'createKey' | 'listKeys' | 'revokeKey' | 'listNamespaces'> = {
  async createKey({ name, role, namespaces, validFor }, { app }) {
    const held = required(toRole(role), 'role');
    const secret = newSecret();
    const key = await app.store.createKey({
      id: app.ids.uuid(),
      name,
      role: held,
      namespaces: namespacesOf(namespaces, held),
      digest: secretDigest(secret),
      validMs: validFor && BigInt(toMillis(validFor)),
    });
    return { key: keyMessage(key), secret };
  },

  async listKeys(request, { app, caller }) {
    const args = pageArgsOf({ app, caller }, AdminService.method.listKeys, request);
    const page = await pageByKey<ApiKey, MessageInitShape<typeof ApiKeySchema>, string>(args, {
      fetch: (rows) => app.store.listKeys(rows),
      keyOf: ({ id }) => id,
      readKey: ([id]) => id!,
      show: keyMessage,
      bytesOf: rowBytes,
    });
    return { keys: page.items, nextPageToken: page.nextPageToken };
  },

  async revokeKey({ keyId }, { app }) {
    return { key: keyMessage(await app.store.revokeKey(keyId)) };
  },

  async listNamespaces(_request, { app }) {
    return { namespaces: await app.store.listNamespaces() };
  },
};

function namespacesOf(given: readonly string[], role: Role): readonly string[] {
  if (given.length === 0) return [role === 'ADMIN' ? EVERY_NAMESPACE : DEFAULT_NAMESPACE];
  if (given.includes(EVERY_NAMESPACE) && given.length > 1) {
    throw invalidField('namespaces', `must be ${EVERY_NAMESPACE} alone, or names`);
  }
  return given;
}

function keyMessage({ namespaces, role, ...key }: ApiKey): MessageInitShape<typeof ApiKeySchema> {
  const { id, name, createTime, expireTime, revokeTime } = key;
  return {
    id,
    name,
    role: fromRole(role),
    namespaces: [...namespaces],
    createTime: fromInstant(createTime),
    ...(expireTime !== undefined && { expireTime: fromInstant(expireTime) }),
    ...(revokeTime !== undefined && { revokeTime: fromInstant(revokeTime) }),
  };
}
