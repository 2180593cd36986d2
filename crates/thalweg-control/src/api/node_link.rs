//! Connections of nodes: WebSockets with one JSON object for each message, and binary ones with the latest fragments of
//! sources.

use super::guard::Client;
use super::refusals::ApiError;
use crate::access::Role;
use crate::service::Service;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{ConnectInfo, Path, State};
use axum::response::Response;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thalweg_node::service::latest::LatestAnswer;
use thalweg_node::service::{FromNode, MAX_SERVICE_MESSAGE, NodeHello, SERVICE_PROTOCOL, cut_text};

/// Time within which a node introduces itself.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// Longest reason of a close frame, in bytes (RFC 6455, section 5.5: 125 with its code).
const MAX_REASON_BYTES: usize = 123;
/// Time within which a node takes a message.
const SEND_TIME: Duration = Duration::from_secs(5);

/// Accepts the connection of a node.
pub(super) async fn accept_node(
    client: Client,
    State(service): State<Arc<Service>>,
    Path(node): Path<String>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    client.check_role(&service, Role::Node)?;
    let upgrade = upgrade.max_message_size(MAX_SERVICE_MESSAGE).max_frame_size(MAX_SERVICE_MESSAGE);
    Ok(upgrade.on_upgrade(move |socket| serve_node(service, socket, node, address)))
}

async fn serve_node(service: Arc<Service>, mut socket: WebSocket, node: String, address: SocketAddr) {
    let mut refusal = match read_hello(&mut socket, &node).await {
        Err(refusal) => refusal,
        Ok(hello) => match service.connect_node(hello, address) {
            Err(refusal) => refusal,
            Ok((connection, messages)) => {
                exchange_messages(&service, &mut socket, &node, messages).await;
                service.disconnect_node(&node, connection);
                return;
            }
        },
    };
    cut_text(&mut refusal, MAX_REASON_BYTES);
    let frame = CloseFrame { code: close_code::POLICY, reason: refusal.into() };
    let _ = tokio::time::timeout(SEND_TIME, socket.send(Message::Close(Some(frame)))).await;
}

async fn read_hello(socket: &mut WebSocket, node: &str) -> Result<NodeHello, String> {
    let first = tokio::time::timeout(HELLO_TIME, socket.recv()).await;
    let Ok(Some(Ok(Message::Text(text)))) = first else { return Err("the node does not introduce itself".into()) };
    match serde_json::from_str(&text) {
        Ok(FromNode::Hello(hello)) if hello.protocol != SERVICE_PROTOCOL => Err(format!(
            "the node speaks version {} of the protocol, and the service {SERVICE_PROTOCOL}",
            hello.protocol
        )),
        Ok(FromNode::Hello(hello)) if hello.node == node => Ok(hello),
        Ok(_) => Err("the node does not introduce itself".into()),
        Err(error) => Err(format!("a message is not understood: {error}")),
    }
}

/// Exchanges messages until one end closes the connection, or does not take part any more.
async fn exchange_messages(
    service: &Service,
    socket: &mut WebSocket,
    node: &str,
    mut messages: tokio::sync::mpsc::UnboundedReceiver<thalweg_node::service::ToNode>,
) {
    loop {
        tokio::select! {
            received = socket.recv() => match received {
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(message) => service.handle_node_message(node, message),
                    Err(error) => {
                        tracing::warn!("node {node}: a message is not understood: {error}");
                        return;
                    }
                },
                Some(Ok(Message::Binary(bytes))) => match LatestAnswer::decode_message(&bytes) {
                    Ok(answer) => service.handle_latest_answer(answer),
                    Err(error) => {
                        tracing::warn!("node {node}: a message is not understood: {error}");
                        return;
                    }
                },
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
            message = messages.recv() => {
                let Some(message) = message else { return };
                let Ok(text) = serde_json::to_string(&message) else { continue };
                let sent = tokio::time::timeout(SEND_TIME, socket.send(Message::text(text))).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }
}
