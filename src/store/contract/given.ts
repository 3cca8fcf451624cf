/** The fields of an upsert. Undefined fields of an existing resource are not changed. */
export type Given<Fields> = { readonly [Name in keyof Fields]?: Fields[Name] | undefined };
