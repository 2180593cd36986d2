//! Notices by e-mail.

use crate::delivery::Outcome;
use crate::notices::{Notice, NoticeEvent, read_secret};
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{SmtpTransport, Transport};
use serde::Deserialize;
use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Time until the server must have answered a command.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Longest subject, in bytes.
const MAX_SUBJECT_BYTES: usize = 200;

/// Table `[control.mail]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MailConfig {
    /// Server: `HOST` or `HOST:PORT`.
    pub server: String,
    /// Encryption of the connection.
    pub security: Security,
    /// Address of the sender.
    pub from: String,
    /// Addresses of the receivers.
    pub to: Vec<String>,
    /// Name with which the service identifies itself; it does not if that is empty.
    pub user: String,
    /// File of the password.
    pub password_file: Option<PathBuf>,
    /// Events of which there is mail; alarms if they are left out.
    pub events: Option<Vec<NoticeEvent>>,
}

/// Encryption of the connection to a server. There is no fallback from one to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// Encryption is begun on a plain connection (STARTTLS, RFC 3207), at port 587.
    #[default]
    Starttls,
    /// The connection is encrypted from its beginning (RFC 8314, section 3.3), at port 465.
    Tls,
    /// The connection is not encrypted, at port 25.
    None,
}

impl Security {
    fn default_port(self) -> u16 {
        match self {
            Self::Starttls => 587,
            Self::Tls => 465,
            Self::None => 25,
        }
    }
}

/// Mail server and receivers, with the password.
#[derive(Debug, Clone, PartialEq)]
pub struct MailDestination {
    /// Events of which there is mail.
    pub(crate) events: Vec<NoticeEvent>,
    host: String,
    port: u16,
    security: Security,
    from: Mailbox,
    to: Vec<Mailbox>,
    credentials: Option<Credentials>,
}

impl MailDestination {
    /// Reads the password of a table, and checks the rest of it.
    ///
    /// # Errors
    /// Something is not right; the sentence says what.
    pub fn from_config(config: &MailConfig) -> Result<Self, String> {
        let (host, port) = split_server(&config.server)?;
        let from = parse_mailbox("from", &config.from)?;
        let to = config.to.iter().map(|text| parse_mailbox("to", text)).collect::<Result<Vec<_>, _>>()?;
        if to.is_empty() {
            return Err("to: it has no receiver".into());
        }
        let credentials = match (config.user.as_str(), &config.password_file) {
            ("", None) => None,
            ("", Some(_)) => return Err("password_file: name the user, too".into()),
            (_, None) => return Err("user: name the file of the password with password_file".into()),
            (user, Some(path)) => Some(Credentials::new(user.to_owned(), read_secret(path)?)),
        };
        let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if credentials.is_some() && config.security == Security::None && !is_local {
            return Err("security = \"none\" would send the password in the clear: use starttls or tls".into());
        }
        Ok(Self {
            events: config.events.clone().unwrap_or_else(|| NoticeEvent::OF_ALARMS.to_vec()),
            host: host.to_owned(),
            port: port.unwrap_or(config.security.default_port()),
            security: config.security,
            from,
            to,
            credentials,
        })
    }

    /// Sends one mail with all notices.
    pub fn deliver_notices(&self, notices: &[Notice]) -> Outcome {
        let message = match self.make_message(notices) {
            Ok(message) => message,
            Err(error) => return Outcome::Refused(self.problem_text(&error)),
        };
        let tls = match (self.security, TlsParameters::new(self.host.clone())) {
            (Security::None, _) => Tls::None,
            (_, Err(error)) => return Outcome::Failed(self.problem_text(&error)),
            (Security::Starttls, Ok(parameters)) => Tls::Required(parameters),
            (Security::Tls, Ok(parameters)) => Tls::Wrapper(parameters),
        };
        let mut transport = SmtpTransport::builder_dangerous(&self.host).port(self.port).tls(tls);
        if let Some(credentials) = &self.credentials {
            transport = transport.credentials(credentials.clone());
        }
        match transport.timeout(Some(ANSWER_TIME)).build().send(&message) {
            Ok(_) => Outcome::Delivered,
            // RFC 5321, section 4.2.1: the client should not repeat the same request after 5xx.
            Err(error) if error.is_permanent() => Outcome::Refused(self.problem_text(&error)),
            Err(error) => Outcome::Failed(self.problem_text(&error)),
        }
    }

    fn problem_text(&self, error: &dyn Error) -> String {
        format!("{}:{}: {}", self.host, self.port, error_chain(error))
    }

    fn make_message(&self, notices: &[Notice]) -> Result<Message, lettre::error::Error> {
        let mut message = Message::builder().from(self.from.clone()).message_id(None);
        for receiver in &self.to {
            message = message.to(receiver.clone());
        }
        let (subject, text) = mail_text(notices);
        message.subject(subject).header(ContentType::TEXT_PLAIN).body(text)
    }
}

fn parse_mailbox(key: &str, text: &str) -> Result<Mailbox, String> {
    text.parse::<Mailbox>().map_err(|error| format!("{key}: '{text}' is no address of e-mail: {error}"))
}

/// Splits the address of a server into its host and its port.
fn split_server(server: &str) -> Result<(&str, Option<u16>), String> {
    let wrong = format!("server: '{server}': write HOST or HOST:PORT");
    let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or(wrong.as_str())?)),
        None => server.split_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
    };
    let is_host = !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || "-._:".contains(c));
    if !is_host {
        return Err(wrong);
    }
    Ok((host, port.map(str::parse).transpose().map_err(|_| wrong)?))
}

/// Returns the subject and the text of a mail.
fn mail_text(notices: &[Notice]) -> (String, String) {
    let Some(first) = notices.first() else { return (String::new(), String::new()) };
    let more = if notices.len() > 1 { format!(" (and {} more)", notices.len() - 1) } else { String::new() };
    let experiment = first.content["experiment"].as_str().unwrap_or_default();
    let mut subject = thalweg_text::replace_controls(&format!("[{experiment}] {}", first.text)).into_owned();
    thalweg_node::service::cut_text(&mut subject, MAX_SUBJECT_BYTES);
    let lines = notices
        .iter()
        .map(|notice| format!("{}  {}\r\n", notice.content["time"].as_str().unwrap_or_default(), notice.text));
    (subject + &more, lines.collect())
}

/// Returns the text of an error with those of its causes.
fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = error.source();
    }
    thalweg_text::replace_controls(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarms::AlarmView;
    use proptest::prelude::*;

    fn table(more: &str) -> Result<MailDestination, String> {
        let text = format!("server = 'mail.example'\nfrom = 'DAQ <daq@lab.example>'\nto = ['a@lab.example']\n{more}");
        MailDestination::from_config(&toml::from_str(&text).unwrap())
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mail = table("").unwrap();
        assert_eq!((mail.port, mail.security, mail.events.len()), (587, Security::Starttls, 2));
        assert_eq!(table("security = 'none'").unwrap().port, 25);
        assert!(table("user = 'daq'").unwrap_err().contains("password_file"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "secret").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let user = format!("user = 'daq'\npassword_file = '{}'\n", path.display());
        assert!(table(&user).is_ok());
        assert!(table(&format!("{user}security = 'none'")).unwrap_err().contains("in the clear"));
        let wrong = MailConfig { server: "mail".into(), from: "daq".into(), ..MailConfig::default() };
        assert!(MailDestination::from_config(&wrong).unwrap_err().contains("from: 'daq'"));
    }

    #[test]
    fn the_server_has_a_host_and_perhaps_a_port() {
        assert_eq!(split_server("mail.example"), Ok(("mail.example", None)));
        assert_eq!(split_server("mail.example:2525"), Ok(("mail.example", Some(2525))));
        assert_eq!(split_server("[::1]:25"), Ok(("::1", Some(25))));
        for wrong in ["", ":25", "mail:port", "[::1]x", "a b", "mail:99999"] {
            assert!(split_server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn alarms_that_came_together_are_one_mail() {
        let alarm = |text: &str| AlarmView { text: text.into(), is_active: true, ..AlarmView::default() };
        let notices = ["crate 1 is off", "crate 2\r\nBcc: x"].map(|text| Notice::of_alarm("lab", 0.0, &alarm(text)));
        let message = table("").unwrap().make_message(&notices).unwrap();
        let text = String::from_utf8(message.formatted()).unwrap();
        assert!(text.contains("Subject: [lab] alarm: crate 1 is off (and 1 more)\r\n"), "{text}");
        assert!(!text.contains("\nBcc"), "{text}");
    }

    proptest! {
        #[test]
        fn any_text_of_an_alarm_makes_a_mail_with_its_own_headers_alone(text in any::<String>()) {
            let alarm = AlarmView { text, is_active: true, ..AlarmView::default() };
            let notices = [Notice::of_alarm("lab\r\nBcc: x@y", 0.0, &alarm)];
            let mail = table("").unwrap().make_message(&notices).unwrap().formatted();
            let mail = String::from_utf8(mail).unwrap();
            let head = mail.split("\r\n\r\n").next().unwrap();
            let names: Vec<&str> = head
                .split("\r\n")
                .filter(|line| !line.starts_with([' ', '\t']))
                .filter_map(|line| Some(line.split_once(':')?.0))
                .collect();
            prop_assert!(!names.contains(&"Bcc") && names.len() <= 8, "{:?}", names);
        }
    }
}
