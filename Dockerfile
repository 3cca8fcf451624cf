# syntax=docker/dockerfile:1
# The server, and every other command: docker run --rm anabranch --help
# Give settings by variables, so that the health check has them, too (docs/configuration.md).

# The version of Node in package-lock.json. A test compares them.
ARG NODE_VERSION=26.10.0

FROM node:${NODE_VERSION}-trixie-slim AS build
WORKDIR /src
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts
COPY . .
RUN npm run build

# What runs. Node is that of the image, so the one that npm would install is left out.
FROM node:${NODE_VERSION}-trixie-slim AS dependencies
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts --omit=dev --omit=optional && mkdir /data

FROM node:${NODE_VERSION}-trixie-slim
LABEL org.opencontainers.image.title="Anabranch" \
  org.opencontainers.image.description="The trajectory store for agents" \
  org.opencontainers.image.licenses="MIT"
RUN rm -rf /usr/local/lib/node_modules /usr/local/bin/npm /usr/local/bin/npx /usr/local/bin/corepack /opt/yarn* && \
  ln -s /app/bin/anabranch.js /usr/local/bin/anabranch
COPY --from=dependencies /app /app
COPY --from=build /src/bin /app/bin
COPY --from=build /src/dist /app/dist
COPY LICENSE /app/LICENSE
# The only folder that is written, besides /tmp: SQLite by default, or what the settings name.
COPY --from=dependencies --chown=1000:1000 /data /data
ENV NODE_ENV=production ANABRANCH_LISTEN=0.0.0.0:50051 ANABRANCH_LOG_FORMAT=json
USER 1000:1000
WORKDIR /data
VOLUME /data
EXPOSE 50051 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["node", "/app/bin/anabranch.js", "health"]
ENTRYPOINT ["node", "/app/bin/anabranch.js"]
CMD ["serve"]
